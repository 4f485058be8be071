package lockinterop;

import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.security.ProtectionDomain;

import net.bytebuddy.jar.asm.ClassReader;
import net.bytebuddy.jar.asm.ClassVisitor;
import net.bytebuddy.jar.asm.ClassWriter;
import net.bytebuddy.jar.asm.MethodVisitor;
import net.bytebuddy.jar.asm.Opcodes;

/**
 * The wall clock that Redisson reads: the machine's, plus an offset.
 *
 * <p>Redisson sends {@code System.currentTimeMillis()} with fair locks and permits, so a fleet of Java programs shows
 * the differences between its machines' clocks there. As an agent of the JVM this class makes every class of Redisson
 * call {@link #currentTimeMillis} instead; nothing else of Redisson is changed, its scripts least of all. What reads
 * {@code nanoTime} (Netty, timers) does not notice, as on a machine whose clock is wrong.
 */
public final class WallClock {
    private static volatile long offsetMillis;

    private WallClock() {
    }

    /** What Redisson takes for the time. */
    public static long currentTimeMillis() {
        return System.currentTimeMillis() + offsetMillis;
    }

    static void setOffset(long millis) {
        offsetMillis = millis;
    }

    /** Called by the JVM before {@code main}. */
    public static void premain(String arguments, Instrumentation instrumentation) {
        instrumentation.addTransformer(new ClassFileTransformer() {
            @Override
            public byte[] transform(ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain,
                                    byte[] code) {
                return name != null && name.startsWith("org/redisson/") ? redirected(code) : null;
            }
        });
    }

    /** The class with its calls redirected. One static call replaces another, so nothing else of it changes. */
    private static byte[] redirected(byte[] code) {
        ClassReader reader = new ClassReader(code);
        ClassWriter writer = new ClassWriter(reader, 0);
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String descriptor, String signature,
                                             String[] exceptions) {
                MethodVisitor next = super.visitMethod(access, name, descriptor, signature, exceptions);
                return new MethodVisitor(Opcodes.ASM9, next) {
                    @Override
                    public void visitMethodInsn(int opcode, String of, String called, String type, boolean itf) {
                        boolean wallClock = of.equals("java/lang/System") && called.equals("currentTimeMillis");
                        String target = wallClock ? "lockinterop/WallClock" : of;
                        super.visitMethodInsn(opcode, target, called, type, itf);
                    }
                };
            }
        }, 0);
        return writer.toByteArray();
    }
}
